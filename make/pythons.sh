#!/bin/sh
# The Pythons that mimokit supports and that run here, newest first.
#
#   pythons.sh supported        3.13, 3.12, …: those with a file in constraints/
#   pythons.sh there            those of them that run here
#   pythons.sh path VERSION     the interpreter of one; PYTHON if that is one of this version
#   pythons.sh choose           the version that `make` takes: that of PYTHON if it is set; else the
#                               newest whose torch is a wheel without CUDA in a folder that pip
#                               searches (find-links), so that no gigabytes are loaded; else the newest
#
# What cannot be answered is said in one sentence on stdout after "error: ", without its full stop,
# which make adds; the exit status is 1.

root=$(dirname "$0")/..
asks='import ensurepip, ssl, sys; print("%d.%d" % sys.version_info[:2])'

refuse() {
    echo "error: $1"
    exit 1
}

supported() {
    ls "$root"/constraints | sed -n 's/^py\([0-9]\)\([0-9]*\)\.txt$/\1.\2/p' | sort -t. -k2 -rn
}

range() {
    echo "Python $(supported | tail -n 1) to $(supported | head -n 1)"
}

# What an interpreter says its version is; nothing if it does not run. A shim of pyenv exists for
# versions that are not selected, and fails.
version_of() {
    "$1" -c "$asks" 2>/dev/null
}

path() {
    if [ -n "$PYTHON" ] && [ "$(version_of "$PYTHON")" = "$1" ]; then
        command -v "$PYTHON"
        return
    fi
    {
        echo "$PATH" | tr : '\n' | sed "s|\$|/python$1|"
        ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python"$1" 2>/dev/null | sort -rV
    } | while IFS= read -r python; do
        if [ "$(version_of "$python")" = "$1" ]; then
            echo "$python"
            break
        fi
    done
}

there() {
    for version in $(supported); do
        [ -z "$(path "$version")" ] || echo "$version"
    done
}

# The folders that pip searches for wheels, as the pip of a version says.
find_links() {
    "$(path "$1")" -m pip config list 2>/dev/null | sed -n "s/^.*find-links='\(.*\)'\$/\1/p" |
        sed 's/\\n/ /g; s|file://||g'
}

# Whether one of some folders has the pinned torch without CUDA for a version.
has_small_torch() {
    pinned=$(sed -n 's/^torch==//p' "$root"/constraints/shared.txt)
    tag=cp$(echo "$1" | tr -d .)
    for folder in $2; do
        ls "$folder"/torch-"$pinned"+cpu-"$tag"-*.whl >/dev/null 2>&1 && return 0
    done
    return 1
}

# The version of PYTHON, which may be a name that only pyenv knows how to find.
version_of_choice() {
    version=$(version_of "$PYTHON")
    case $PYTHON in
        python3.*) version=${version:-${PYTHON#python}} ;;
    esac
    [ -n "$version" ] ||
        refuse "PYTHON=$PYTHON does not run here, or has no venv; mimokit needs $(range)"
    supported | grep -qx "$version" ||
        refuse "mimokit needs $(range), but PYTHON=$PYTHON is Python $version"
    [ -n "$(path "$version")" ] ||
        refuse "PYTHON=$PYTHON does not run here, or has no venv; mimokit needs $(range)"
    echo "$version"
}

choose() {
    if [ -n "$PYTHON" ]; then
        version_of_choice
        return
    fi
    versions=$(there)
    [ -n "$versions" ] || refuse "mimokit needs $(range), and none of them runs here; install one, or name one: PYTHON=/path/to/python make"
    newest=$(echo "$versions" | head -n 1)
    folders=$(find_links "$newest")
    for version in $versions; do
        if has_small_torch "$version" "$folders"; then
            echo "$version"
            return
        fi
    done
    echo "$newest"
}

case $1 in
    supported | there | choose) "$1" ;;
    path) path "$2" ;;
    *) refuse "pythons.sh knows supported, there, path and choose, not '$1'" ;;
esac
