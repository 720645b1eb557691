"""Attacks on a training job by another local user without the secret: partial and replayed handshakes, wrong secrets,
random bytes, thousands of connections per second. The job's result must stay bitwise equal, and no attacker may join.
Also checks what a process exposes and may do: sockets, arguments, environment, files, privileges, core dumps, and the
hardening of the binary. Prints its figures."""
import ctypes
import glob
import hashlib
import hmac
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from cli_runner import ESPALIER, children, free_port, wait_until

LONG = "ESPALIER_TEST_LONG" in os.environ
HERE = os.path.dirname(os.path.abspath(__file__))
REQUEST_BYTES, CHALLENGE_BYTES, PROOF_BYTES = 96, 32, 32
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
RUN = """
[run]
dir = "{folder}/{name}"
threads = 1
[model]
layers = 2
heads = 2
dim = {dim}
seq_len = 32
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
global_batch = 8
[comm]
transport = "tcp"
[log]
tensorboard = false
"""


def listening(pid):
    """[(address, port)] of a process's listening sockets, from /proc."""
    inodes = set()
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            found = re.match(r"socket:\[(\d+)\]", os.readlink(link))
        except OSError:
            continue
        if found:
            inodes.add(found.group(1))
    sockets = []
    for table, family, length in (("tcp", socket.AF_INET, 4), ("tcp6", socket.AF_INET6, 16)):
        with open(f"/proc/{pid}/net/{table}") as file:
            for line in file.read().splitlines()[1:]:
                fields = line.split()
                if fields[3] != "0A" or fields[9] not in inodes:
                    continue
                address, port = fields[1].split(":")
                raw = b"".join(struct.pack("=I", int(address[i:i + 8], 16)) for i in range(0, length * 2, 8))
                sockets.append((socket.inet_ntop(family, raw), int(port, 16)))
    return sockets


def dumped_memory(pid):
    """The memory of a process that a core dump may contain: mappings without the flag «dd» (MADV_DONTDUMP)."""
    with open(f"/proc/{pid}/smaps") as file:
        mappings = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r.*?^VmFlags:([^\n]*)", file.read(), re.M | re.S)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end, flags in mappings:
            if {"dd", "io"} & set(flags.split()):
                continue
            at, end, tail = int(begin, 16), int(end, 16), b""
            while at < end:
                try:
                    chunk = os.pread(memory.fileno(), min(end - at, 1 << 22), at)
                except OSError:
                    break  # the mapping has changed since, or is not readable
                if not chunk:
                    break
                yield tail + chunk
                tail, at = chunk[-64:], at + len(chunk)


def handshake_request(job=b"stranger", role=3, rank=0, nonce=None):
    return (b"ESPALIER" + struct.pack("<HBxiQIxxxx", 1, role, rank, 0, 0) + hashlib.sha256(job).digest() +
            (nonce or os.urandom(32)))


def read_exactly(one, number):
    got = b""
    while len(got) < number:
        more = one.recv(number - len(got))
        if not more:
            break
        got += more
    return got


class JobTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-attack-")
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 400)

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, name, steps, dim=32):
        with open(self.path(name + ".toml"), "w") as file:
            file.write(RUN.format(folder=self.folder, name=name, steps=steps, dim=dim))
        return [ESPALIER, "train", self.path(name + ".toml"), "--nproc", "2"]

    def started(self, name, steps=10**6, dim=32, core=None, **more):
        """Starts a job; if `core` is given, all its processes run on that core."""
        pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
        process = subprocess.Popen(self.command(name, steps, dim), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, preexec_fn=pin, **more)
        self.addCleanup(self.end, process)
        self.assertTrue(wait_until(lambda: self.logged_steps(name) >= 2 or process.poll() is not None))
        self.assertIsNone(process.poll())
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def logged_steps(self, name):
        try:
            with open(self.path(name + "/metrics.jsonl"), "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def metrics(self, name):
        with open(self.path(name + "/metrics.jsonl")) as file:
            return [json.loads(line) for line in file.read().split("\n")[:-1]]

    def listen_in(self):
        """Captures loopback packets of the size of a handshake message. Larger packets would overflow the socket buffer, and
        handshakes would be lost."""
        try:
            ears = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        except (OSError, AttributeError):
            return None
        self.addCleanup(ears.close)
        lengths = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in (
            (0x28, 0, 0, 16), (0x35, 0, 2, 70), (0x25, 1, 0, 400), (0x06, 0, 0, 1 << 18), (0x06, 0, 0, 0))))
        ears.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 5, ctypes.addressof(lengths)))
        try:
            ears.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        except PermissionError:  # capturing is allowed, a larger buffer is not
            ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        ears.bind(("lo", 0))
        ears.setblocking(False)
        return ears

    @staticmethod
    def listener_cpu_seconds(process):
        """CPU time of the threads that accept connections, over all processes of the job."""
        took = 0
        for pid in [process.pid, *children(process.pid)]:
            for task in glob.glob(f"/proc/{pid}/task/*"):
                with open(task + "/comm") as name, open(task + "/schedstat") as spent:
                    if name.read() == "esp-listener\n":
                        took += int(spent.read().split()[0])
        return took * 1e-9

    def ports(self, process):
        pids = [process.pid, *children(process.pid)]
        return sorted({port for pid in pids for _, port in listening(pid)})


class Unauthenticated(JobTestCase):
    def call(self, port):
        one = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.addCleanup(one.close)
        return one

    def proof(self, key, one, request):
        """The proof of a peer that uses `key` as the secret."""
        one.sendall(request)
        challenge = read_exactly(one, CHALLENGE_BYTES)
        self.assertEqual(len(challenge), CHALLENGE_BYTES)
        one.sendall(hmac.new(key, request + challenge, hashlib.sha256).digest())
        return read_exactly(one, 32)

    def test_job_is_unaffected_when_unauthenticated_peers_connect(self):
        steps = 2500 if LONG else 1000
        whole = subprocess.run(self.command("whole", steps), capture_output=True, text=True, timeout=100)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        ears = self.listen_in()
        process = self.started("attacked", steps)
        ports = self.ports(process)
        self.assertGreaterEqual(len(ports), 3)  # the port of the store, and one port per rank
        refused = 0
        for port in ports:
            for role in (1, 2, 3):
                for key in (b"", b"\0" * 32, os.urandom(32)):
                    verdict = self.proof(key, self.call(port), handshake_request(role=role, rank=role - 2))
                    self.assertEqual(verdict, b"\0" * 32)  # every invalid proof gets the same reply
                    refused += 1
            for request in (os.urandom(REQUEST_BYTES), b"\0" * REQUEST_BYTES, b"GET / HTTP/1.1\r\n" * 6, handshake_request(rank=2**31 - 1)):
                self.assertEqual(self.proof(b"x", self.call(port), request), b"\0" * 32)
                refused += 1
            half = [self.call(port) for _ in range(20)]
            for i, one in enumerate(half):
                one.sendall(handshake_request()[:1 + 4 * i])
        replays = self.replay(ears, ports)
        flood = self.flood(ports, 3 if LONG else 0.3)
        _, errors = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, errors)
        for one, other in zip(self.metrics("whole"), self.metrics("attacked"), strict=True):
            self.assertEqual((one["step"], one["loss"], one["grad_norm"]), (other["step"], other["loss"], other["grad_norm"]))
        print(f"{len(ports)} ports: {refused} invalid proofs and {replays} replayed handshakes rejected, "
              f"{flood} connections per second; {steps} steps bit-identical to a run without attack")

    def replay(self, ears, ports):
        """Replays every captured handshake request and proof to its original port."""
        if not ears:
            return 0
        streams, number = {}, 0
        for _ in range(200_000):
            try:
                packet = ears.recv(65536)[14:]
            except BlockingIOError:
                break
            if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
                continue
            tcp = packet[(packet[0] & 15) * 4:struct.unpack("!H", packet[2:4])[0]]
            source, port = struct.unpack("!HH", tcp[:4])
            payload = tcp[(tcp[12] >> 4) * 4:]
            if port in ports and payload and len(streams.setdefault((source, port), b"")) < REQUEST_BYTES + PROOF_BYTES:
                if payload not in streams[source, port]:  # loopback captures each packet twice
                    streams[source, port] += payload
        for (_, port), said in streams.items():
            if not said.startswith(b"ESPALIER") or len(said) < REQUEST_BYTES + PROOF_BYTES:
                continue
            one = self.call(port)
            one.sendall(said[:REQUEST_BYTES])
            read_exactly(one, CHALLENGE_BYTES)
            one.sendall(said[REQUEST_BYTES:REQUEST_BYTES + PROOF_BYTES])
            self.assertEqual(read_exactly(one, 32), b"\0" * 32)
            number += 1
        self.assertGreaterEqual(number, 2)
        return number

    def flood(self, ports, seconds, core=None):
        pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
        answer = subprocess.run([sys.executable, os.path.join(HERE, "attack_flood.py"), ",".join(map(str, ports)),
                                 str(seconds)], capture_output=True, text=True, timeout=60, preexec_fn=pin)
        return int(answer.stdout)

    def test_job_is_not_slowed_when_another_core_is_flooded(self):
        """The job runs on one core and the flood on another. Prints a figure without a limit, because other programs take time
        too. The same flood on a foreign port shows how much two busy cores slow each other in any case."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("needs two cores")
        process = self.started("timed", dim=64, core=cores[0])
        said = []  # step lines
        reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
        reader.start()
        ports = self.ports(process)
        elsewhere = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.addCleanup(elsewhere.close)
        elsewhere.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 2)
        targets = {"peace": [], "elsewhere": [elsewhere.getsockname()[1]], "war": ports}
        rounds, seconds = (int(os.environ.get("TRIALS", 20)), 1.0) if LONG else (1, 0.3)
        steps, rates = {name: [] for name in targets}, {name: [] for name in targets}
        listener_share = 0
        for _ in range(rounds):
            for name, where in targets.items():
                first, before, begun = self.logged_steps("timed"), self.listener_cpu_seconds(process), time.monotonic()
                if where:
                    rates[name].append(self.flood(where, seconds, cores[1]))
                else:
                    time.sleep(seconds)
                if name == "war":  # share of a core, independent of other load
                    listener_share += (self.listener_cpu_seconds(process) - before) / (time.monotonic() - begun) / rounds
                self.assertTrue(wait_until(lambda least=first + 3: self.logged_steps("timed") >= least))
                steps[name].append(statistics.mean(line["step_ms"] for line in self.metrics("timed")[first + 1:]))

        def slower(name, than):
            """The median slowdown over rounds, and the spread between rounds."""
            each = sorted(100 * (one / other - 1) for one, other in zip(steps[name], steps[than]))
            return f"{statistics.median(each):+.2f} % (half of the rounds {each[len(each) // 4]:+.2f} to " \
                   f"{each[len(each) * 3 // 4]:+.2f})"

        print(f"{statistics.mean(rates['war']):.0f} connections per second in {rounds} rounds, step time "
              f"{statistics.median(steps['peace']):.3f} ms: slowdown against no flood {slower('war', 'peace')}, against "
              f"{statistics.mean(rates['elsewhere']):.0f} per second at an unrelated port {slower('war', 'elsewhere')}; "
              f"listener threads use {100 * listener_share:.2f} % of a core")
        process.send_signal(signal.SIGTERM)
        reader.join(timeout=60)
        self.assertEqual(process.wait(timeout=60), 75, said[-20:])


class Authenticated(JobTestCase):
    """A peer that has the secret but sends invalid frames: too long, damaged, out of order or unknown. They close its
    connection, and the job's result stays the same. Data frames: esp/net/tcp/frame_test.cpp."""
    SECRET = "0123456789abcdef0123456789abcdef"

    def key(self, role):
        secret = hashlib.sha256(self.SECRET.encode()).digest()
        extracted = hmac.new(b"espalier handshake 1", secret, hashlib.sha256).digest()
        return hmac.new(extracted, b"caller" + bytes([role]) + self.job.encode() + b"\x01", hashlib.sha256).digest()

    def connect(self, port, role):
        one = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.addCleanup(one.close)
        request = handshake_request(self.job.encode(), role=role, rank=-1)
        one.sendall(request)
        challenge = read_exactly(one, CHALLENGE_BYTES)
        one.sendall(hmac.new(self.key(role), request + challenge, hashlib.sha256).digest())
        return one, read_exactly(one, 32)

    @staticmethod
    def frame(length, kind, body=b"", sequence=0, crc=None):
        rest = struct.pack("<QBBH", sequence, kind, 0, 0)
        return struct.pack("<II", length, crc32c(rest + body) if crc is None else crc) + rest + body

    def closed(self, one):
        """True if the peer closes the connection within the socket's timeout (20 s)."""
        try:
            while one.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def test_broken_frames_close_only_their_connection(self):
        steps = 1000
        with open(os.open(self.path("secret"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(self.SECRET)

        def job(name):
            words, port = self.command(name, steps)[:3], free_port()
            self.job = f"port-{port}"  # job name of ranks without espalier launch
            processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(
                os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), ESPALIER_SECRET_FILE=self.path("secret"))) for rank in (0, 1)]
            for process in processes:
                self.addCleanup(self.end, process)
            return processes

        for process in job("whole"):
            _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, errors)
        processes = job("attacked")
        self.assertTrue(wait_until(lambda: self.logged_steps("attacked") >= 2 or processes[0].poll() is not None))
        ports = sorted({port for process in processes for _, port in listening(process.pid)})
        self.assertGreaterEqual(len(ports), 3)
        junk = os.urandom(1 << 20)
        attacks = {
            1: [self.frame(2**32 - 1, 1), self.frame(33 << 20, 3), self.frame(0, 1, crc=0), self.frame(0, 3, sequence=7), self.frame(0, 250), junk],
            2: [self.frame(2**32 - 1, 64), self.frame(0, 64, crc=1), self.frame(0, 64, sequence=2**63), self.frame(4, 66, b"abcd"), junk],
        }
        accepted = tried = 0
        for port in ports:
            for role, texts in attacks.items():
                for text in texts:
                    one, verdict = self.connect(port, role)
                    tried += 1
                    accepted += verdict not in (b"", b"\0" * 32)
                    try:
                        one.sendall(text)
                    except ConnectionError:
                        pass
                    self.assertTrue(self.closed(one), (port, role, text[:40]))
        self.assertEqual(accepted, len(attacks[1]) + len(attacks[2]), "only the store must accept the proof; the other ports have another job")
        for process in processes:
            _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, errors)
        for one, other in zip(self.metrics("whole"), self.metrics("attacked"), strict=True):
            self.assertEqual((one["step"], one["loss"], one["grad_norm"]), (other["step"], other["loss"], other["grad_norm"]))
        print(f"{tried} invalid frames after the handshake, {accepted} of them on accepted connections: all connections closed; "
              f"{steps} steps bit-identical to a run without attack")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Exposure(JobTestCase):
    """What other users of the machine can see of a job."""

    def started_with_secret(self, name, secret):
        """Starts a launcher and two ranks with a secret file."""
        with open(os.open(self.path("secret"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secret)
        words = self.command(name, 10**6)
        process = subprocess.Popen(
            [ESPALIER, "launch", "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2", "--rdzv-endpoint",
             f"127.0.0.1:{free_port()}", "--rdzv-id", name, "--secret-file", self.path("secret"), "--", *words[1:3]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, ESPALIER_LOG="debug"))
        self.addCleanup(self.end, process)
        self.assertTrue(wait_until(lambda: self.logged_steps(name) >= 2 or process.poll() is not None))
        self.assertEqual(len(children(process.pid)), 2)
        return process

    def test_single_host_job_listens_only_on_loopback(self):
        process = self.started("quiet")
        found = [at for pid in [process.pid, *children(process.pid)] for at in listening(pid)]
        self.assertTrue(found)
        self.assertEqual({address for address, _ in found} - {"127.0.0.1", "::1"}, set())
        print(f"{len(found)} listening sockets, all on the loopback")

    def test_secret_is_not_in_process_list_logs_or_files(self):
        secret = os.urandom(24).hex()
        process = self.started_with_secret("hidden", secret.encode())
        ranks = children(process.pid)
        # Raw, and in common encodings.
        needles = [secret.encode(), secret.encode().hex().encode(), secret[:24].encode()]
        places = {}
        for pid in [process.pid, *ranks]:
            for what in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{what}", "rb") as file:
                    places[f"/proc/{pid}/{what}"] = file.read()
        process.terminate()
        places["output"], _ = process.communicate(timeout=60)
        for at, _, files in os.walk(self.path("hidden")):
            for name in files:
                with open(os.path.join(at, name), "rb") as file:
                    places[os.path.join(at, name)] = file.read()
        for place, content in places.items():
            for needle in needles:
                self.assertNotIn(needle, content, place)
        print(f"the secret is in none of {len(places)} places: arguments, environments, output at debug level, run folder")

    def test_ranks_drop_privileges_and_core_dumps(self):
        process = self.started("modest")
        for pid in [process.pid, *children(process.pid)]:
            with open(f"/proc/{pid}/status") as file:
                self.assertRegex(file.read(), r"NoNewPrivs:\s+1")
            with open(f"/proc/{pid}/limits") as file:
                # With 1 byte the kernel starts no program of core_pattern either; with 0 it would.
                most = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1] % (1 << 64))
                self.assertRegex(file.read(), rf"Max core file size\s+{most} ")

    def test_core_dumps_would_not_contain_the_secret(self):
        """Reads all memory that a core dump would contain, in the launcher and in both ranks."""
        secret = os.urandom(24).hex().encode()
        process = self.started_with_secret("dumped", secret)
        digest = hashlib.sha256(secret).digest()  # the job secret
        read = 0
        for pid in [process.pid, *children(process.pid)]:
            for memory in dumped_memory(pid):
                read += len(memory)
                self.assertEqual([memory.count(needle) for needle in (secret, digest)], [0, 0], f"process {pid}")
        self.assertGreater(read, 1 << 20)
        print(f"the job secret is not in the {read >> 20} MiB that core dumps of launcher and ranks would contain")

    def test_core_dumps_are_kept_when_requested(self):
        process = self.started("asked", env=dict(os.environ, ESPALIER_CORE="1"))
        with open(f"/proc/{process.pid}/limits") as ours, open("/proc/self/limits") as own:
            line = r"Max core file size.*"
            self.assertEqual(re.search(line, ours.read()).group(), re.search(line, own.read()).group())


class OccupiedNames(JobTestCase):
    USER, STRANGER = 54321, 65534  # user ids of the job and of the other user

    def test_ranks_start_when_another_user_occupies_the_secret_name(self):
        """Ranks without `espalier launch` find the user's secret in /dev/shm under a predictable name. Another user has created
        a file of that name before."""
        if os.geteuid() != 0:
            self.skipTest("needs root to run as two users")
        occupied = [f"/dev/shm/espalier-{self.USER}", f"/dev/shm/espalier-{self.USER}-1"]
        self.addCleanup(lambda: [shutil.rmtree(one) for one in glob.glob(f"/dev/shm/espalier-{self.USER}*")])

        def become(user):
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)

        subprocess.run(["mkdir", "-m", "777", *occupied], check=True, preexec_fn=lambda: become(self.STRANGER))
        subprocess.run(["sh", "-c", f"echo {'a' * 64} > {occupied[0]}/secret"], check=True, preexec_fn=lambda: become(self.STRANGER))
        words = [word for word in self.command("squatted", 20) if word not in ("--nproc", "2")]
        for path in (self.folder, *glob.glob(self.path("*"))):
            os.chown(path, self.USER, self.USER)
        port, ranks = free_port(), []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
        for rank in range(2):
            ranks.append(subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: become(self.USER),
                env=dict(environment, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), HOME=self.folder)))
            self.addCleanup(ranks[-1].kill)
        for one in ranks:
            _, errors = one.communicate(timeout=90)
            self.assertEqual(one.returncode, 0, errors)
        self.assertEqual(os.stat(f"/dev/shm/espalier-{self.USER}-2").st_uid, self.USER)
        self.assertEqual(len(self.metrics("squatted")), 20)
        print(f"{len(occupied)} names occupied by user {self.STRANGER}; the ranks of user {self.USER} started nevertheless")


class Encryption(JobTestCase):
    def captured_traffic(self, name, **more):
        """Loopback traffic of a job with two ranks over tcp, and its losses."""
        ears, packets, ports = self.listen_in(), [], set()
        process = subprocess.Popen(self.command(name, 30), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, **more))
        self.addCleanup(self.end, process)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            running = process.poll() is None
            try:
                ports.update(self.ports(process) if running else [])
            except (FileNotFoundError, ProcessLookupError):
                pass  # the rank has just ended
            try:
                while ears:
                    packets.append(ears.recv(1 << 17)[14:])
            except BlockingIOError:
                pass
            if not running:
                break
            time.sleep(0.002)
        self.assertEqual(process.returncode, 0, process.stderr.read())
        said = []
        for packet in packets:  # other programs use the loopback too
            if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
                continue
            tcp = packet[(packet[0] & 15) * 4:]
            if ports.intersection(struct.unpack("!HH", tcp[:4])):
                said.append(tcp[(tcp[12] >> 4) * 4:])
        return b"".join(said), [(line["loss"], line["grad_norm"]) for line in self.metrics(name)]

    def test_traffic_is_encrypted_when_requested(self):
        plain, losses = self.captured_traffic("plain")
        sealed, same = self.captured_traffic("sealed", ESPALIER_ENCRYPT="1")
        self.assertEqual(losses, same)
        self.assertEqual(len(losses), 30)
        if not plain:
            self.skipTest("capturing loopback packets is not permitted")
        frame = b"ESPF"  # magic bytes of a data frame
        self.assertGreater(plain.count(frame), 100)
        self.assertEqual(sealed.count(frame), 0)
        self.assertGreater(len(sealed), len(plain) // 2)
        print(f"{plain.count(frame)} frames captured from an unencrypted job, none in {len(sealed) >> 10} KiB of an encrypted "
              f"job; the losses of {len(losses)} steps are bit-identical")


class Hardening(unittest.TestCase):
    def test_binary_is_hardened(self):
        def readelf(*words):
            return subprocess.run(["readelf", *words, ESPALIER], capture_output=True, text=True, check=True).stdout

        if not shutil.which("readelf"):
            self.skipTest("readelf is not installed")
        self.assertRegex(readelf("-h"), r"Type:\s+DYN")  # position-independent
        self.assertIn("GNU_RELRO", readelf("-lW"))
        self.assertRegex(readelf("-d"), r"BIND_NOW|FLAGS.*NOW")
        self.assertNotRegex(readelf("-lW"), r"GNU_STACK.*RWE")
        names = readelf("-W", "--dyn-syms")
        self.assertIn("__stack_chk_fail", names)
        self.assertRegex(names, r"__(memcpy|snprintf|vsnprintf|read|realpath|fdelt|memset|memmove|strcpy|pread)_chk")


if __name__ == "__main__":
    unittest.main()
