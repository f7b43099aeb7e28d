"""The pipeline at scale: the batch job on Spark beside DuckDB, on the same journals."""
