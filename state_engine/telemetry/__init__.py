"""Numbers and traces of jobs for the monitoring of a site: Prometheus and OpenTelemetry."""
