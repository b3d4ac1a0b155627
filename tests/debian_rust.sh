# Debian's current Rust compiler, for tests that need a target or sources of the standard library that the
# installed compiler lacks. The compiler is unpacked into a folder, not installed. Other scripts source this
# file.
# shellcheck shell=bash

# The name of the package that matches PATTERN, among the packages that PACKAGE depends on.
_dependency() { # _dependency PACKAGE PATTERN
  apt-cache "${_options[@]}" show --no-all-versions "$1" | grep ^Depends: | grep -oE "$2"
}

# Unpacks the compiler, its library and other packages into FOLDER, once. Sets the variables by which cargo
# finds them.
debian_rust() { # debian_rust FOLDER PACKAGE...
  local folder=$1 lists=$1.lists library llvm package
  shift
  if [ ! -e "$folder/complete" ]; then
    mkdir -p "$lists/partial" "$folder" || return
    lists=$(readlink -f "$lists")
    local _options=(-o APT::Architectures=amd64,arm64 -o "Dir::State::Lists=$lists")
    apt-get "${_options[@]}" --quiet=2 update || return
    library=$(_dependency libstd-rust-web-dev:amd64 'libstd-rust-web-[0-9.]+[0-9]') || return
    llvm=$(_dependency "$library" 'libllvm[0-9]+') || return
    (cd "$folder" && apt-get "${_options[@]}" --quiet=2 -o APT::Sandbox::User=root download \
      rustc-web libstd-rust-web-dev:amd64 "$library" "$llvm" "$@") || return
    for package in "$folder"/*.deb; do dpkg --extract "$package" "$folder" || return; done
    rm "$folder"/*.deb
    touch "$folder/complete"
  fi
  folder=$(readlink -f "$folder")/usr
  export RUSTC=$folder/bin/rustc LD_LIBRARY_PATH=$folder/lib/x86_64-linux-gnu
}
