"""The segment store on regions: a segment is a table of a region, whose topics lie in Kafka or in a directory."""
