"""A Kubernetes control plane for tests: real HTTP on loopback, pods as local processes.

What is real: the REST interface (as far as Dagster's launcher, the official Python client and the
chart use it), admission, RBAC, scheduling with priorities and GPUs, the Job and Deployment
controllers with their conditions and reasons, volumes, environment, read-only roots, the graceful
end of pods, and every process: a container runs under bubblewrap with a file system, a PID space
and a user of its own.

What is not, so that no test may claim it:

- **NetworkPolicies are stored and never enforced**: all pods share the host's loopback.
- For the same reason two pods cannot listen on one port, a Service is its name in ``/etc/hosts``
  (the container must listen on the Service's port), and a Deployment replaces a pod by first
  ending the old one, whatever its update strategy.
- Images are a map from names to folders of this machine; nothing is pulled. Runtime classes are
  checked for existence only. Memory and CPU are booked by the scheduler, not limited;
  ``oom_kill`` plays the kernel's part. Seccomp profiles and capabilities of the spec are not read:
  every container has no capabilities and no new privileges.
- Liveness probes, autoscalers, CronJobs, StatefulSets and DaemonSets are stored and not acted on.
- Waits that a cluster stretches over minutes (crash back-off, lost nodes) take less than seconds.
- Objects live in memory: a new process starts empty.
"""
