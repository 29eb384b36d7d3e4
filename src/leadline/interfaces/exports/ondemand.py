"""A folder with an app for Open OnDemand, which starts ``leadline web`` in a job of its user."""

import re
import shlex
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.files.atomic import write_atomically
from leadline.interfaces.exports.quoting import yaml_string

FILES = {
    "manifest.yml": (
        "name: Leadline\ncategory: Interactive Apps\nsubcategory: Servers\nrole: batch_connect\n"
        "description: Time, memory and cost of AI jobs before they run.\n"
    ),
    "form.yml.erb": (
        "---\ncluster: {cluster}\nattributes:\n"
        '  bc_num_hours:\n    label: "Hours"\n    value: 2\n    min: 1\n    max: 12\n'
        '  folder:\n    label: "Folder with your workloads"\n    value: "<%= Dir.home %>"\n'
        '  allow_submit:\n    widget: check_box\n    label: "Submit and cancel jobs, too"\n    value: 0\n'
        "form:\n  - bc_num_hours\n  - bc_account\n  - folder\n  - allow_submit\n"
    ),
    "submit.yml.erb": (
        "---\nbatch_connect:\n  template: basic\n"
        'script:\n  native:\n    - "--cpus-per-task=2"\n    - "--mem=4G"\n'
    ),
    "template/before.sh.erb": (
        "# Open OnDemand passes port and password to the page that connects.\n"
        "port=$(find_port)\npassword=$(create_passwd 32)\n"
        'token_file="$PWD/token"\n(umask 077; printf "%s\\n" "$password" > "$token_file")\n'
        "export port password token_file\n"
    ),
    "template/script.sh.erb": (
        '#!/usr/bin/env bash\n<%- require "shellwords" -%>\ncd -- <%= Shellwords.escape(context.folder) %> || exit 1\n'
        'exec leadline web --host 0.0.0.0 --port "$port" --token-file "$token_file" \\\n'
        '  --root-path "/node/$host/$port" --allow-host {host} \\\n'
        '  <%= context.allow_submit == "1" ? "--allow-submit" : "" %>\n'
    ),
    "template/after.sh.erb": (
        '# The session is shown as ready once the server answers.\nwait_until_port_used "$host:$port" 120\n'
    ),
    "view.html.erb": (
        '<a class="btn btn-primary" target="_blank"'
        ' href="/node/<%= host %>/<%= port %>/?token=<%= password %>">Open Leadline</a>\n'
    ),
    "README.md": (
        "# Leadline on Open OnDemand\n\nCopy this folder to `~/ondemand/dev/leadline`, or for all users to\n"
        "`/var/www/ood/apps/sys/leadline`. Edit `form.yml.erb` if the cluster has another name.\n"
    ),
}  # fmt: skip
"""File → its content; ``{cluster}`` and ``{host}`` are filled in."""


def write_app(folder: Path, *, cluster: str, host: str) -> tuple[Path, ...]:
    """Write the app into a new or empty folder, and return its files.

    Args:
        folder: The app's folder.
        cluster: The cluster's name in Open OnDemand's ``clusters.d``.
        host: Name of the server under which its users open Open OnDemand.

    Raises:
        InvalidInput: the folder is not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput(f"{folder} is not an empty folder: name a new one")
    values = {"{cluster}": yaml_string(cluster), "{host}": shlex.quote(host)}
    written = []
    for name, template in FILES.items():
        # ERB would run what stands between its own marks.
        content = re.sub(r"\{(cluster|host)\}", lambda match: values[match[0]].replace("<%", "<%%"), template)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        written.append(path)
    return tuple(written)
