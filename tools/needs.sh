#!/bin/sh
# Print the Python to make .venv with, or say all that lacks in one message: sh tools/needs.sh [java]
# PYTHON names a Python; a .venv that is there is used as it is. With `java`, Spark's Java must be there, too.

lacks= packages= python=
lack() { # lack WHAT [PACKAGE …]
	lacks="$lacks
- $1"
	shift
	packages="$packages $*"
}

if [ -x .venv/bin/python ]; then
	python=.venv/bin/python
else
	found=
	for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
		command -v "$name" >/dev/null 2>&1 || continue
		if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
			python=$name
			break
		fi
		found="$found $name is $("$name" --version 2>&1);"
	done
	if [ -z "$python" ]; then
		lack "Python from 3.11 to 3.14:${found:- there is no ${PYTHON:-python3} on PATH}" python3 python3-venv
	elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
		lack "the venv module of $python" "$(basename "$python")-venv"
	fi
fi
asked=" $* "
if [ "${asked#* java }" != "$asked" ]; then
	if [ -n "$python" ]; then
		java=$("$python" -B -m streamkeeper.jars.java 2>&1) || lack "${java#error: }" openjdk-17-jdk-headless
	elif ! command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null 2>&1; then
		lack "Java 17 or 21 with its compiler: there is no ${JAVA_HOME:+$JAVA_HOME/bin/}java" openjdk-17-jdk-headless
	fi
fi
if [ -n "$lacks" ]; then
	echo "error: this machine lacks:$lacks
Install it (Debian and Ubuntu: apt-get install$packages), or name another Python (make … PYTHON=/path/to/python3), and run the same command again." >&2
	exit 1
fi
echo "$python"
