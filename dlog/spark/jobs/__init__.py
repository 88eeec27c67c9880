"""Jobs on whole streams, each of them a function of a Spark session and its options, and `dlog pipeline NAME`.

What they share is in frame.py. A job reads segments in Spark's workers; no record passes through the driver.
"""
