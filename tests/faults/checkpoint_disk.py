"""Model of a disk that loses power: replays the file-system calls of a program below a folder (recorded by checkpoint_shim.c)
and enumerates the possible contents of the disk if the power fails at any call.

The model follows the guarantees of the file system. The content of a file is durable once the file was synced; a name in
a folder (new, renamed, removed) once the folder was synced. Any other change may be on the disk or not, independently. A
rename is atomic. An interrupted write may be partial."""
import os


def read_log(path, root):
    """The recorded calls with paths relative to the root: [(call, path, more)]."""
    calls = []
    with open(path, "rb") as file:
        while line := file.readline():
            call, name, *more = line.decode().rstrip("\n").split("\t")
            name = os.path.relpath(name, root)
            if call == "write":
                calls.append((call, name, (int(more[0]), file.read(int(more[1])))))
            elif call in ("rename", "exchange"):
                calls.append((call, name, os.path.relpath(more[0], root)))
            else:
                calls.append((call, name, int(more[0]) if more else None))
    return calls


class File:
    def __init__(self):
        self.safe = b""  # durable content
        self.pending = []  # (offset, bytes), or (size, None) for a truncation

    def sync(self):
        self.safe, self.pending = self.after(self.pending), []

    def after(self, changes):
        content = bytearray(self.safe)
        for at, data in changes:
            if data is None:
                content = content[:at] + bytes(max(0, at - len(content)))
            else:
                content += bytes(max(0, at - len(content)))  # a hole
                content[at:at + len(data)] = data
        return bytes(content)


class Folder:
    def __init__(self):
        self.now, self.safe, self.pending = {}, {}, []  # pending: changes that are not durable; a rename puts one Change into both folders


class Change:
    """An atomic change of names in one or two folders: a name is set (to a file or folder) or removed (None)."""

    def __init__(self, *edits):
        self.edits, self.is_safe = edits, False  # (folder, name, node or None)


class Disk:
    def __init__(self):
        self.root = Folder()

    def find(self, path):
        node = self.root
        for name in path.split("/") if path != "." else []:
            node = node.now[name]
        return node

    def place(self, path):
        folder, _, name = path.rpartition("/")
        return self.find(folder or "."), name

    def change(self, *edits):
        change = Change(*edits)
        for folder in {id(folder): folder for folder, _, _ in edits}.values():
            folder.pending.append(change)
        for folder, name, node in edits:
            if node is None:
                folder.now.pop(name, None)
            else:
                folder.now[name] = node

    def do(self, call, path, more):
        if call in ("create", "mkdir"):
            self.change((*self.place(path), File() if call == "create" else Folder()))
        elif call == "write":
            self.find(path).pending.append(more)
        elif call == "truncate":
            self.find(path).pending.append((more, None))
        elif call == "remove":
            self.change((*self.place(path), None))
        elif call == "rename":
            node = self.find(path)
            self.change((*self.place(path), None), (*self.place(more), node))
        elif call == "exchange":
            one, other = self.find(path), self.find(more)
            self.change((*self.place(path), other), (*self.place(more), one))
        elif call == "sync":
            self.sync(self.find(path))

    def sync(self, node):
        if isinstance(node, File):
            node.sync()
            return
        for change in node.pending:
            if not change.is_safe:
                change.is_safe = True
                for folder, name, what in change.edits:
                    if what is None:
                        folder.safe.pop(name, None)
                    else:
                        folder.safe[name] = what
        node.pending = []

    def after_cut(self, survives):
        """{path: bytes, or None for a folder}: content of the disk after a power loss. survives(kind) chooses for each change
        that is not durable; kind is "name" or "data"."""
        chosen = {}

        def names_of(folder):
            names = dict(folder.safe)
            for change in folder.pending:
                if change.is_safe:
                    continue
                if id(change) not in chosen:
                    chosen[id(change)] = survives("name")
                if chosen[id(change)]:
                    for where, name, node in change.edits:
                        if where is folder:
                            names.pop(name, None) if node is None else names.__setitem__(name, node)
            return names

        found = {}

        def walk(folder, prefix, above):
            for name, node in names_of(folder).items():
                if isinstance(node, File):
                    found[prefix + name] = node.after([one for one in node.pending if survives("data")])
                elif id(node) not in above:  # the old and the new name of a rename may both survive
                    found[prefix + name] = None
                    walk(node, prefix + name + "/", above | {id(node)})

        walk(self.root, "", {id(self.root)})
        return found


def write_tree(tree, folder):
    for path, content in sorted(tree.items()):
        at = os.path.join(folder, path)
        if content is None:
            os.makedirs(at, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(at, "wb") as file:
                file.write(content)


def read_tree(folder):
    tree = {}
    for at, folders, files in os.walk(folder):
        for name in folders:
            tree[os.path.relpath(os.path.join(at, name), folder)] = None
        for name in files:
            with open(os.path.join(at, name), "rb") as file:
                tree[os.path.relpath(os.path.join(at, name), folder)] = file.read()
    return tree
