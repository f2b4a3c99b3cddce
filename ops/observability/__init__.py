"""Alert rules for Prometheus and dashboards for Grafana, as files."""
