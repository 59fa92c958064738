"""What `benchmarks/soak.py` is made of: sessions that do ordinary work, faults that come between, and a census."""
