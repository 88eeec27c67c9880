"""Regions: write-ahead logs that many tables share, each in a topic of one partition.

The rules here know no broker and no clock. `counting.py` decides which entries of a topic count; `tables.py` knows what
each table has, and from where on its records are live. The bytes are in dlog/wire/region.py.
"""
