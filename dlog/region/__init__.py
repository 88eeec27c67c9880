"""Regions: write-ahead logs that many tables share, each in a topic of one partition.

The rules here know no broker and no clock. `counting.py` decides which entries of a topic count.
"""
