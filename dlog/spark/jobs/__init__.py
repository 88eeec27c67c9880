"""Jobs on whole streams: functions of a Spark session and options, also run by `dlog pipeline NAME`.

frame.py is shared by all. A job reads segments in Spark's workers; no record passes through the driver.
"""
