#!/bin/sh
# Installs Korvet from the archive of `make bundle`, of which this file is a part, or replaces another version; without
# network. The program goes to /opt/korvet, the units to systemd, the example to /etc/korvet if nothing is there. Nothing
# is enabled or started, nor when an image of this machine boots for the first time (50-korvet.preset). Variables: PYTHON
# is the interpreter (python3), of the version in the archive's name; DESTDIR is put before each path.
set -eu
umask 022
here=$(cd -- "$(dirname -- "$0")" && pwd)
opt=${DESTDIR:-}/opt/korvet etc=${DESTDIR:-}/etc
export PIP_DISABLE_PIP_VERSION_CHECK=1

"${PYTHON:-python3}" -m venv "$opt"
# Exactly what is in the archive, older or newer than what is there.
"$opt/bin/python" -m pip install --quiet --no-index --no-deps --force-reinstall "$here"/../wheels/*.whl
"$opt/bin/python" -m pip --quiet check

install -D --mode=644 --target-directory="$etc/systemd/system" "$here"/systemd/korvet*.*
install -D --mode=644 --target-directory="$etc/systemd/system-preset" "$here/systemd/50-korvet.preset"
[ -e "$etc/korvet/korvet.toml" ] || install -D --mode=644 "$here/korvet.toml" "$etc/korvet/korvet.toml"
echo "$("$opt/bin/korvet" --version) is in $opt: edit $etc/korvet/korvet.toml, then enable it as deploy/README.md says"
