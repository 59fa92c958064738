"""What `benchmarks/sandbox.py` compares: this project's service and backends, the docker command, SWE-ReX."""
