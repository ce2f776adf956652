# For scripts that run checks one after the other and count them. `log` is the file for their output.
passed=0 failed=0 skipped=0
skip() { # what, why
    skipped=$((skipped + 1))
    echo "skip $1: $2"
}
check() { # what, command: shows the command's output only if it fails
    local what=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        grep -v '^ptxas info' "$log" | tail -n 40
        return 1
    fi
}
print_counts() { # the last line of such a script, and its exit status
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    [ $failed = 0 ]
}
