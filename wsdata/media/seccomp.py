"""The system-call filter of the parsing child: what it denies, compiled and loaded.

The parent compiles the filter once, the child loads it before it imports the job. Calls that a
decoder never needs are denied with EPERM, so that a library which only tries one goes on.
Which processes get the filter belongs in `sandbox`.
"""

import ctypes
import errno
import functools
import os
import struct
import tempfile

from wsdata.errors import SandboxError

DENIED_CALLS = (
    # network
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg",
    "sendmmsg",
    # other processes, and leaving the group that the watchdog kills
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "setsid", "setpgid",
    # mounts and namespaces
    "mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen",
    "fsconfig", "fsmount", "fspick", "mount_setattr", "unshare", "setns", "open_by_handle_at",
    "name_to_handle_at",
    # the kernel
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl", "syslog", "iopl", "ioperm",
    "personality", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname",
    "setdomainname", "vhangup", "lookup_dcookie",
    # keys and identity
    "add_key", "keyctl", "request_key", "setuid", "setgid", "setreuid", "setregid", "setresuid",
    "setresgid", "setgroups", "setfsuid", "setfsgid",
    # what outlives a process, and the next file's process could find
    "shmget", "shmat", "msgget", "msgsnd", "semget", "semop", "mq_open",
    # how others run
    "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "setpriority",
    "ioprio_set", "migrate_pages", "move_pages", "process_mrelease",
)  # fmt: skip

_START_CALLS = ("fork", "vfork", "execve", "execveat")
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = (
    0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_DENIED_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
_DENIED_FCNTLS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: they let the kernel signal others
_OWN_PID = 0x7FFF0A5E  # above any process number; stands for the child's own until it is known

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_BPF_INSTRUCTION_BYTES = 8


@functools.cache
def compile_filter(*, can_fork: bool) -> bytes | None:
    """Compile the filter for this machine's architecture.

    Args:
        can_fork: Whether the child may start processes and programs; threads it may always
            start.

    Returns:
        Instructions of a classic BPF program, or None where libseccomp is not installed.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError):
        return None
    program = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    denied = pyseccomp.ERRNO(errno.EPERM)
    for name in DENIED_CALLS + (() if can_fork else _START_CALLS):
        try:
            number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)
        except (OSError, ValueError):
            continue
        if number >= 0:  # negative: not a call of this architecture
            program.add_rule(denied, name)
    # clone3 hides its flags behind a pointer; told that it does not exist, libc uses clone
    program.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for flag in _CLONE_NAMESPACES:
        argument = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag)
        program.add_rule(denied, "clone", argument)
    if not can_fork:
        argument = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, 0)
        program.add_rule(denied, "clone", argument)
    for request in _DENIED_IOCTLS:
        program.add_rule(denied, "ioctl", pyseccomp.Arg(1, pyseccomp.EQ, request))
    for request in _DENIED_FCNTLS:
        program.add_rule(denied, "fcntl", pyseccomp.Arg(1, pyseccomp.EQ, request))
    # limits of itself alone, and signals to itself alone: abort() is one
    program.add_rule(denied, "prlimit64", pyseccomp.Arg(0, pyseccomp.NE, 0))
    program.add_rule(denied, "tgkill", pyseccomp.Arg(0, pyseccomp.NE, _OWN_PID))
    with tempfile.TemporaryFile() as handle:
        program.export_bpf(handle)
        handle.seek(0)
        return handle.read()


class _BpfProgram(ctypes.Structure):
    _fields_ = (("num_instructions", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def load_filter(program: bytes) -> None:
    """Put this process, and all that it starts, under a compiled filter for good.

    What a process starts may not even signal itself.

    Raises:
        SandboxError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = program.replace(struct.pack("=I", _OWN_PID), struct.pack("=I", os.getpid()))
    argument = _BpfProgram(len(program) // _BPF_INSTRUCTION_BYTES, program)
    if (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(argument), 0, 0) != 0
    ):
        raise SandboxError(f"the kernel refused the seccomp filter: errno {ctypes.get_errno()}")
