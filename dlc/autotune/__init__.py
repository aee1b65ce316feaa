"""The search for schedules: tasks, candidates, measurements, what they taught, and their log."""
