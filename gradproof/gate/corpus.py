"""Generates text similar to tool calls from word lists, to train the tokenizer.

Deterministic in (lines, seed). It decides which pieces of text become one token, nothing else: no model learns from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gradproof.streams import philox


def listed(words: str) -> list[str]:
    """The words of a text."""
    return words.split()


PROGRAMS = listed("""ls cat cp mv rm mkdir rmdir touch chmod chown chgrp ln find grep egrep sed awk cut sort uniq head
tail wc tr tee xargs diff patch tar gzip gunzip zip unzip curl wget ssh scp rsync nc ncat netcat telnet ping dig
nslookup ip ifconfig netstat ss ps top htop kill killall pkill jobs nohup systemctl service journalctl crontab at sudo
su passwd useradd usermod userdel groupadd id whoami who last uname hostname df du mount umount fdisk mkfs dd lsblk
free vmstat uptime date echo printf read export env set unset source bash sh zsh python python3 pip perl ruby php node
npm npx yarn go cargo rustc gcc g++ make cmake git docker docker-compose podman kubectl helm terraform ansible aws
gcloud az psql mysql sqlite3 redis-cli mongo openssl gpg base64 xxd od hexdump md5sum sha1sum sha256sum strings file
stat readlink realpath basename dirname pwd cd pushd popd test true false sleep watch time timeout exit return exec
eval trap wait screen tmux vim nano less more man which whereis locate type alias history iptables ufw nmap tcpdump
strace lsof ldd objdump apt apt-get yum dnf brew snap dpkg rpm pacman loginctl modprobe lsmod insmod dmesg sysctl
swapoff truncate shred mkfifo mktemp split join paste comm expand fold seq yes rev nl column jq yq pandoc convert
ffmpeg identify""")

FLAGS = listed("""-a -b -c -d -e -f -g -h -i -k -l -m -n -o -p -q -r -s -t -u -v -w -x -z -A -C -E -F -I -L -N -O -P
-R -S -T -X -la -al -lah -rf -xzf -czf -xvf -zxvf -it -rn -ri -inr -name -iname -type -exec -delete -print -print0
-mtime -size -perm -maxdepth -mindepth -path -not -prune -user -group -newer -empty -regex --help --version --verbose
--quiet --force --recursive --all --output --input --file --dry-run --exclude --include --no-cache --user --global
--save --config --host --port --name --namespace --format --json --color --depth --delete --archive --progress --yes
--no-color --no-verify""")

WORDS = listed("""data config log logs test tests file files dir src lib bin build dist docs main index server client
app web api user users admin root home tmp temp cache backup old new output input result results report script scripts
setup install update upgrade remove start stop restart status enable disable create delete list show get put post add
commit push pull clone checkout branch merge rebase reset stash fetch origin master develop feature release version
name value key token password secret token host port address local remote public private shared common default example
sample demo project module package service worker database table row column select from where insert into order group
limit and or not null true false none error warning info debug message print return import export class function for
while if then else fi do done case esac in local string line lines word count total size number first last next image
video audio font style socket connect listen bind send recv shell spawn process thread memory network system kernel
device driver module exec command argument option path pattern replace search match text note notes todo readme
license changelog requirements""")

FOLDERS = listed("""/ /etc /etc/passwd /etc/shadow /etc/hosts /etc/cron.d /etc/ssh /etc/nginx /etc/systemd/system /usr
/usr/bin /usr/local/bin /usr/share /usr/lib /var /var/log /var/www/html /var/lib /var/tmp /tmp /dev /dev/null
/dev/zero /dev/sda /dev/tcp /dev/shm /dev/random /dev/urandom /proc /proc/self /proc/cpuinfo /sys /opt /home /root
/root/.ssh ~/.ssh ~/.bashrc ~/.bash_history ~/.ssh/authorized_keys ~/.ssh/id_rsa ~/.aws/credentials ~/.config /mnt
/media /srv /boot /bin /bin/sh /bin/bash /usr/bin/env /run . .. ./ ../ ~ $HOME $PWD $PATH $USER $1 $i $file "$@" """)

ENDINGS = listed(""".txt .log .py .sh .js .ts .json .yaml .yml .toml .ini .conf .cfg .md .html .css .xml .csv .tsv
.sql .db .c .h .cpp .go .rs .java .rb .php .pl .tar .tar.gz .tgz .zip .gz .bz2 .png .jpg .jpeg .gif .pdf .mp3 .mp4
.bak .tmp .pid .lock .pem .key .crt .env .service .so .o .exe""")

HOSTS = listed("""localhost 127.0.0.1 0.0.0.0 192.168.0.1 10.0.0.1 172.16.0.1 example.com example.org github.com
raw.githubusercontent.com api.example.com registry.example.com 8.8.8.8 google.com pypi.org internal.example""")

TOOLS = listed(
    "Bash Read Write Edit Glob Grep WebFetch WebSearch Task NotebookEdit mcp__files__read_file mcp__db__query"
)
ARGUMENTS = listed("""command file_path content old_string new_string pattern path url query prompt description
timeout""")
CODE = (
    "import os,sys,socket,subprocess",
    "import json",
    'print("{w}")',
    "{w} = {w}({w})",
    "os.system('{w}')",
    's.connect(("{h}",{n}))',
    "for {w} in {w}:",
    'if [ -f "{p}" ]; then',
    'if [ "$?" -ne 0 ]; then',
    "for i in $(seq 1 {n}); do",
    "while read -r line; do",
    "BEGIN {{ sum=0 }} {{ sum+=${n} }} END {{ print sum }}",
    "{{print $1}}",
    "{{print $NF}}",
    "s/{w}/{w}/g",
    "^{w}.*$",
    "[0-9]+",
    "[a-zA-Z_]*",
    "#!/bin/bash",
    "#!/usr/bin/env python3",
    "SELECT * FROM {w} WHERE {w} = {n};",
    'echo "{w} {w}: ${w}"',
)


def corpus(lines: int = 40_000, seed: int = 0) -> Iterator[str]:
    """Calls, one a line."""
    generator = np.random.Generator(philox("corpus", seed))

    def one(of: list[str] | tuple[str, ...]) -> str:
        """Early words come oftener, as in any text."""
        return of[int(len(of) * generator.random() ** 1.6)]

    for _ in range(lines):
        yield _call(one, generator) if generator.random() < 0.3 else _shell(one, generator)


def _call(one: Callable[..., str], generator: np.random.Generator) -> str:
    value = _shell(one, generator) if generator.random() < 0.5 else _words(one, generator)
    parts = [one(TOOLS), f"{one(ARGUMENTS)}: {value}"]
    if generator.random() < 0.5:
        parts.append(f"{one(ARGUMENTS)}: {_path(one, generator)}")
    if generator.random() < 0.5:
        parts.append(f"@ {_path(one, generator)}")
    if generator.random() < 0.3:
        parts.append(f"< {one(TOOLS)} {one(ARGUMENTS)}: {_shell(one, generator)}")
    return "\n".join(parts)


def _shell(one: Callable[..., str], generator: np.random.Generator) -> str:
    text = _simple(one, generator)
    for _ in range(generator.geometric(0.55) - 1):
        text += one((" | ", " && ", "; ", " || ", " > ", " 2>/dev/null | ", " >> ", "↵")) + _simple(one, generator)
    return text + one(("", "", "", "", " 2>/dev/null", " > /dev/null 2>&1", " &"))


def _simple(one: Callable[..., str], generator: np.random.Generator) -> str:
    parts = [one(("", "", "", "", "", "", "", "sudo ")) + one(PROGRAMS)]
    for _ in range(generator.integers(0, 3)):
        parts.append(one(FLAGS))
    for _ in range(generator.integers(0, 3)):
        parts.append(_argument(one, generator))
    return " ".join(parts)


def _argument(one: Callable[..., str], generator: np.random.Generator) -> str:
    kind = generator.random()
    if kind < 0.45:
        return _path(one, generator)
    if kind < 0.6:
        return one(WORDS)
    if kind < 0.7:
        return str(generator.integers(0, 10 ** generator.integers(1, 6)))
    if kind < 0.78:
        return one(("http://", "https://")) + one(HOSTS) + _path(one, generator)
    if kind < 0.82:
        return one(HOSTS)
    if kind < 0.94:
        quote = one(("'", '"'))
        code = one(CODE) if generator.random() < 0.6 else "{w} {w}"
        while "{" in code.replace("{{", ""):
            before = code
            for field, pick in (("{w}", WORDS), ("{h}", HOSTS), ("{p}", FOLDERS)):
                code = code.replace(field, one(pick), 1)
            code = code.replace("{n}", str(generator.integers(1, 9999)), 1)
            if code == before:
                break
        return quote + code.replace("{{", "{").replace("}}", "}") + quote
    return f"{one(WORDS).upper()}={one(WORDS)}"


def _path(one: Callable[..., str], generator: np.random.Generator) -> str:
    folder = one(FOLDERS)
    if generator.random() < 0.4:
        return folder
    name = "/".join(one(WORDS) for _ in range(generator.integers(1, 3)))
    name = one(("*", name)) if generator.random() < 0.3 else name
    return f"{folder.rstrip('/')}/{name}{one(ENDINGS)}" if generator.random() < 0.7 else f"{name}{one(ENDINGS)}"


def _words(one: Callable[..., str], generator: np.random.Generator) -> str:
    return " ".join(one(WORDS) for _ in range(generator.integers(2, 12)))
