"""Prometheus rules as tables: one row an alert. `make rules` writes them to config/prometheus/rules.

The committed YAML is what users read and change; a test fails where it differs from the rows.
"""
