"""The segment store `s3`: many streams share a node's write-ahead log, which is uploaded to objects."""
