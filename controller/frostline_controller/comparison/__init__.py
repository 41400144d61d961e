"""The comparison of one job in several arms and seeds: its runs, their statistics, and its tables and pictures."""
