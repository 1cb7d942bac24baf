"""Tuning: plans and their ranges, the study and its storage, trials in processes, the search."""
