#!/usr/bin/env bash
# Trains GPT-2 124M from random weights on the State of the Union addresses (12 MB of text), with GPT-2's tokens.
#   scripts/run_gpt2_124M.sh [OPTION…]    more options of train_gpt2, such as --steps 100 or --resume
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh run
scripts/get_data.sh vocab.bpe sotu
make --no-print-directory train_gpt2
exec ./train_gpt2 --model d12 --tokenizer gpt2 --data data/sotu.txt --batch 4 --seq 256 --total-batch 16384 \
    --eval-every 50 --save-every 100 --out out/gpt2_124M "$@"
