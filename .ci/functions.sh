# What .ci/run and .ci/nightly share: sourced in the root of the repository, with $envs set.

say() { printf '\n== %s\n' "$*"; }

# attempt COMMAND...: what fails is told at the end, after everything else has run.
failed=()
attempt() { say "$*"; "$@" || failed+=("$*"); }

# make NAME PYTHON REQUIREMENT...: a virtual environment with this project and more.
make() {
  local name=$1 python=$2
  shift 2
  say "$name: $("$python" --version), installing $*"
  "$python" -m venv --clear "$envs/$name"
  "$envs/$name/bin/python" -m pip install -q --disable-pip-version-check -e "$@"
  # Where nothing writes bytecode, each process that a test starts would compile the package again.
  "$envs/$name/bin/python" -m compileall -q jaxresid
}

# python_of VERSION: its interpreter, pyenv's or one on PATH, or nothing. A shim may be there for a
# version that is not.
python_of() {
  local found
  for found in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/python 2>/dev/null | sort -rV) \
    "python$1"; do
    if "$found" -c 'import ensurepip' 2>/dev/null; then echo "$found"; return; fi
  done
}

main_python=python3
"$main_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || main_python=$(python_of 3.11)
[ -n "$main_python" ] || { echo "needs Python 3.11 or newer"; exit 1; }

# A test process for each core, each of which takes up to 2 GiB; four suit a runner of 16.
workers=$("$main_python" -c 'import os; print(min(max(os.cpu_count() or 2, 2), 4))')
