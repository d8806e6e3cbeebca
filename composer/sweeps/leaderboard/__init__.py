"""The leaderboard of sweeps: computed once, shown as text, as plain data and as a page."""
