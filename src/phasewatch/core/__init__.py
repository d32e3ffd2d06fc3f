"""The pure part: pages in, verdicts out. No clock, files, sockets, threads or logging."""
