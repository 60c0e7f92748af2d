"""The dashboards of Grafana, from code: `python -m deploy.grafana.build` writes them to dashboards/."""
