"""What ``bench_pushpull.py`` is made of: models' shapes, jobs of the compared stores, and the report."""
