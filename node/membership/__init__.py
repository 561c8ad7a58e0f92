"""A broker as the controller sees it: its life, its directories, its dynamic settings."""
