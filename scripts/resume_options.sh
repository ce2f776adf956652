# train_slurm.sh and train_hosts.sh source this file with train_gpt2's options. It sets `out` to the directory of the
# run, and `options` to "$@", or to what resumes that run if it exists. It returns 1 if --out is missing.
# shellcheck shell=bash
out=
options=("$@")
for ((i = 0; i < $#; ++i)); do
    case ${options[i]} in
        --out) out=${options[i + 1]:-} ;;
        --out=*) out=${options[i]#--out=} ;;
    esac
done
[[ $out ]] || return 1
if [[ -e $out/options.json ]]; then
    options=(--resume)
    while (($#)); do
        case $1 in
            --init) shift ;;  # excluded by --resume: the checkpoint has the weights
            --init=* | --resume) ;;
            *) options+=("$1") ;;
        esac
        shift
    done
fi
