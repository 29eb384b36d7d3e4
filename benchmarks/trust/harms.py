"""Hostile scripts: each tries one harm on a canary, then trains three steps."""

from leadline.graphs.torch.worker import confinement

PRELUDE = """
import asyncio, ctypes, json, os, signal, socket, subprocess, sys, time
import torch
canary = json.loads(os.environ["LEADLINE_CANARY"])
home, shm, pid, port, mark = (canary[name] for name in ("home", "shm", "pid", "port", "mark"))
file, encoded = home + "/file.txt", (home + "/file.txt").encode()
libc = ctypes.CDLL(None, use_errno=True)
def shell(command):
    subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
ATTEMPT = """
try:
    {body}
except (OSError, RuntimeError, subprocess.SubprocessError):
    pass
"""
TRAINING = """
net = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(9):
    net(torch.rand(4, 2).cuda()).sum().backward()
    optimizer.step()
"""
MODEL = """
def build():
    return torch.nn.Linear(2, 2)
"""
JAX_STEP = """
import jax
def build():
    return jax.jit(lambda x: x @ x), (jax.ShapeDtypeStruct((2, 2), "float32"),)
"""

FILES = {
    "rm in a shell": "shell(f'rm {file}')",
    "mv in a shell": "shell(f'mv {file} {file}.moved')",
    "touch of a new file": "shell(f'touch {home}/new')",
    "sed -i": "shell(f'sed -i s/safe/harmed/ {file}')",
    "truncate in a shell": "shell(f'truncate -s 0 {file}')",
    "ln -sf over a file": "shell(f'ln -sf /dev/null {file}')",
    "a hard link, written through": "shell(f'ln {file} {home}/link && echo harmed > {home}/link')",
    "mv of the home folder": "shell(f'mv {home}/folder {home}/elsewhere')",
    "rm -r of a folder": "shell(f'rm -r {home}/folder')",
    "an entry in .bashrc": "shell(f'echo harmed >> {home}/.bashrc')",
    "os.popen": "os.popen(f'echo harmed > {file}').read()",
    "os.posix_spawn": "os.waitpid(os.posix_spawn('/bin/rm', ['rm', file], os.environ), 0)",
    "os.spawnv": "os.spawnv(os.P_WAIT, '/bin/rm', ['rm', file])",
    "an asyncio shell": """
async def run():
    await (await asyncio.create_subprocess_shell(f"echo harmed > {file}")).wait()
asyncio.run(run())
""",
    "a child Python": "subprocess.run([sys.executable, '-c', f'open({file!r}, \"w\").write(\"harmed\")'])",
    "a fork that executes": """
child = os.fork()
if not child:
    os.execvp("rm", ["rm", file])
os.waitpid(child, 0)
""",
    "a fork of a fork in a new session": """
child = os.fork()
if not child:
    os.setsid()
    if not os.fork():
        time.sleep(0.5)
        os.execvp("sh", ["sh", "-c", "sleep 1; rm " + file])
    os._exit(0)
os.waitpid(child, 0)
""",
    "execve in place of the script": "os.execvp('rm', ['rm', file])",
    "a program in memory": """
number = os.memfd_create("program")
os.write(number, open("/bin/rm", "rb").read())
subprocess.run([f"/proc/self/fd/{number}", file], pass_fds=[number])
""",
    "rm in a shell before an error": "shell(f'rm {file}'); raise ValueError('stopped')",
    "a user namespace of its own": "shell(f'unshare -Urm sh -c \"umount -a; rm {file}\"')",
    "unlink in C": "libc.unlink(encoded)",
    "rename in C": "libc.rename(encoded, encoded + b'.moved')",
    "rmdir in C": "libc.rmdir((home + '/empty').encode())",
    "open and write in C": "number = libc.open(encoded, os.O_WRONLY | os.O_TRUNC); libc.write(number, b'harmed', 6)",
    "a shared mapping in C": """
number = libc.open(encoded, os.O_RDWR)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, 4, 3, 1, number, 0) if number >= 0 else None
if number >= 0:
    ctypes.memmove(address, b"harm", 4)
    libc.msync(ctypes.c_void_p(address), 4, 4)
""",
    "symlink in C": "libc.symlink(b'/etc', (home + '/new').encode())",
    "sqlite3": """
import sqlite3
try:
    with sqlite3.connect(home + "/new.db") as base:
        base.execute("create table harmed (id)")
except sqlite3.Error:
    pass
""",
    "pyarrow": """
try:
    import pyarrow
except ImportError:
    libc.creat((home + "/new.arrow").encode(), 0o600)
else:
    with pyarrow.OSFile(home + "/new.arrow", "wb") as target:
        target.write(b"harmed")
""",
    "h5py, or a write in C without it": """
try:
    import h5py
except ImportError:
    number = libc.creat((home + "/new.h5").encode(), 0o600)
    libc.write(number, b"harmed", 6)
else:
    with h5py.File(home + "/new.h5", "w") as target:
        target["harmed"] = 1
""",
    "a tensor mapped to a file": "torch.from_file(home + '/new.bin', shared=True, size=10, dtype=torch.uint8).fill_(1)",
    "a FIFO": "os.mkfifo(home + '/new')",
    "a FIFO in C": "libc.mkfifo((home + '/new').encode(), 0o600)",
    "a socket file": "socket.socket(socket.AF_UNIX).bind(home + '/new')",
    "a worker of a data loader": """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        subprocess.run(["rm", "-f", file])
        return index
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    "an import with side effects": """
open("helper.py", "w").write(f"import os; os.popen('echo harmed > {file}').read()")
sys.path.insert(0, ".")
try:
    import helper
except ImportError:
    shell(f"rm {file}")
""",
}
TRUNCATION = {"truncate in C": "libc.truncate(encoded, ctypes.c_long(0))"}
ATTRIBUTES = {
    "chmod in a shell": "shell(f'chmod 777 {file}')",
    "chmod in C": "libc.chmod(encoded, 0o777)",
    "touch -d": "shell(f'touch -d 2001-01-01 {file}')",
    "an extended attribute in C": "libc.setxattr(encoded, b'user.harmed', b'1', 1, 0)",
}
CACHES = {
    "a file of the cache": "open(home + '/.cache/file.txt', 'w').write('harmed')",
    "a new folder of the cache": "os.makedirs(home + '/.cache/new/folder')",
}
SHARED_MEMORY = {
    "a file in /dev/shm": "open(shm, 'w').write('harmed')",
    "rm of a file in /dev/shm": "shell(f'rm {shm}')",
    "shm_unlink": "libc.shm_unlink(('/' + os.path.basename(shm)).encode())",
    "a System V segment": "libc.shmctl(canary['segment'], 0, None)",
}
NETWORK = {
    "a TCP connection": "socket.create_connection(('127.0.0.1', port), 2)",
    "a TCP connection of bash": "subprocess.run(['bash', '-c', f'echo x > /dev/tcp/127.0.0.1/{port}'], stderr=-3)",
    "a UDP message": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "a listening port": """
server = socket.socket()
server.bind(("", canary["free_port"]))
server.listen()
time.sleep(0.3)
""",
    "a store of torch.distributed": """
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(canary["free_port"]))
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("cuda", (1,))
time.sleep(0.3)
""",
    "an HTTP server of a child": """
child = subprocess.Popen([sys.executable, "-m", "http.server", str(canary["free_port"])], stdout=-3, stderr=-3)
time.sleep(1)
child.kill()
""",
}
SOCKETS = {
    "a Unix socket": "socket.socket(socket.AF_UNIX).connect(home + '/socket')",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0' + mark)",
}
SIGNALS = {
    "os.kill": "os.kill(pid, signal.SIGTERM)",
    "kill in a shell": "shell(f'kill {pid}')",
    "SIGSTOP in C": "libc.kill(pid, signal.SIGSTOP)",
    "a signal by pidfd": "signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM)",
    "memory of another process by /proc": """
with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
    memory.seek(canary["address"])
    memory.write(b"harmed")
""",
    "memory of another process by ptrace": """
if libc.ptrace(16, pid, None, None) == 0:
    os.waitpid(pid, 0x40000000)
    libc.ptrace(5, pid, ctypes.c_void_p(canary["address"]), ctypes.c_void_p(0x6D7261))
    libc.ptrace(17, pid, None, None)
""",
    "memory of another process by process_vm_writev": """
data = ctypes.create_string_buffer(b"harmed", 6)
local = (ctypes.c_size_t * 2)(ctypes.addressof(data), 6)
remote = (ctypes.c_size_t * 2)(canary["address"], 6)
libc.process_vm_writev(pid, local, 1, remote, 1, 0)
""",
}
SETTINGS = {
    "the priority of another process": "os.setpriority(os.PRIO_PROCESS, pid, 19)",
    "the limits of another process": "import resource; resource.prlimit(pid, resource.RLIMIT_NOFILE, (7, 7))",
    "the CPUs of another process": "os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})",
}
LASTING = {
    "a daemon": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', mark], start_new_session=True)",
    "a daemon that starts daemons": """
nested = "import os, time; forks = [os.fork() for _ in range(4)]; all(forks) or os.setsid(); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", nested, mark], start_new_session=True)
time.sleep(0.5)
""",
    "a shell in the background": "shell(f'nohup setsid {sys.executable} -c \"import time; time.sleep(60)\" {mark} &')",
}
HARMS: dict[str, dict[str, str]] = {
    confinement.CHANGES: FILES,
    confinement.TRUNCATION: TRUNCATION,
    confinement.ATTRIBUTES: ATTRIBUTES,
    confinement.CACHES: CACHES,
    confinement.SHARED_MEMORY: SHARED_MEMORY,
    confinement.NETWORK: NETWORK,
    confinement.SOCKETS: SOCKETS,
    confinement.SIGNALS: SIGNALS,
    confinement.SETTINGS: SETTINGS,
    confinement.LASTING: LASTING,
}
"""Harm that the output names → name of a script → code that tries it."""
WITHOUT_TRACE = ("execve in place of the script", "rm in a shell before an error")
"""Scripts that end before their trace does."""


def script(*codes: str, ending: str = TRAINING) -> str:
    """Return the text of a script that tries harms, and trains or defines a model in spite of errors."""
    bodies = [code.strip("\n").replace("\n", "\n    ") for code in codes]
    return PRELUDE + "".join(ATTEMPT.format(body=body) for body in bodies) + ending
