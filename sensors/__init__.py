"""WHEN: jobs, and the sensors that request their runs."""
