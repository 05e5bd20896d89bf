# shellcheck shell=bash
# Programs of Debian's arm64 packages, with the shared libraries that they need.

# needs FILE: prints the shared libraries that a program or a library names.
needs() {
    objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'
}

# add_libraries TREE PRODUCT PROGRAM...: copies what these programs need, and what that needs, from the unpacked packages
# in TREE to PRODUCT/lib.
add_libraries() {
    local tree=$1 product=$2 next name found todo=("${@:3}")
    mkdir -p "$product/lib"
    while ((${#todo[@]})); do
        next=${todo[0]}
        todo=("${todo[@]:1}")
        for name in $(needs "$next"); do
            [[ -e $product/lib/$name ]] && continue
            # Debian's alternatives would name the tracer's library; here there is one.
            found=$(find "$tree" -name "$name" -print -quit)
            found=${found:-$(find "$tree" -name "${name/tachyon/tachyon*}*" -print -quit)}
            [[ -n $found ]] || fail "cannot find the library '$name' that $(basename "$next") needs in Debian's packages"
            cp -L "$found" "$product/lib/$name"
            todo+=("$product/lib/$name")
        done
    done
}
