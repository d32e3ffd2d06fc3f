"""Grafana dashboards as tables: one row a panel. `make dashboards` writes them to grafana/dashboards.

Only for development: this package needs grafana-foundation-sdk and is not in the wheel, which ships the JSON.
"""
