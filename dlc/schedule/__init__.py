"""Loop nests and host programs, and the schedules that rewrite loop nests."""
