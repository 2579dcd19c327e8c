# Prints facts about a node, for kubectl causeway doctor --pre --nodes. It reads only. POSIX sh, with
# uname, ls and grep.
# HOST      the root directory of the node
# ROOT      the directory of the volumes, absolute and clean
# KUBELETS  possible root directories of the kubelet, separated by spaces
# POD       the UID of this pod
set -uf
export LC_ALL=C

# state prints the state of a path on the node: directory, other, absent, link or denied. A link is
# not followed: its target would be looked up in this container.
state() {
	at=
	rest=${1#/}
	while [ -n "$rest" ]; do
		at=$at/${rest%%/*}
		case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
		if [ -L "$HOST$at" ]; then
			echo link
			return
		fi
		if [ ! -e "$HOST$at" ]; then
			case $(ls -d "$HOST$at" 2>&1) in
			*': No such file or directory') echo absent ;;
			*) echo denied ;;
			esac
			return
		fi
		if [ ! -d "$HOST$at" ]; then
			echo other
			return
		fi
	done
	echo directory
}

# content prints the content of the root: denied, empty, served (by a driver) or foreign.
content() {
	entries=$(ls -A "$HOST$ROOT" 2>/dev/null) || {
		echo denied
		return
	}
	found=empty
	while read -r entry; do
		case $entry in
		'' | lost+found | identity.json.new) ;;
		identity.json)
			echo served
			return
			;;
		*) found=foreign ;;
		esac
	done <<END
$entries
END
	echo $found
}

# filesystem prints the type and the interesting options of the filesystem with a path, by the mounts
# of the node's first process. Of several mounts at a path the last one counts.
filesystem() {
	best=-1 type=unknown options=
	while read -r _ _ _ _ point flags rest; do
		prefix=$point
		[ "$point" = / ] && prefix=
		case $1/ in "$prefix"/*) ;; *) continue ;; esac
		[ ${#prefix} -ge $best ] || continue
		best=${#prefix}
		rest=" $rest"
		rest=${rest#* - }
		type=${rest%% *}
		options=$flags,${rest##* }
	done 2>/dev/null <"$HOST/proc/1/mountinfo"
	kept=
	IFS=,
	for o in $options; do
		case $o in ro | prjquota | pquota) kept=$kept,$o ;; esac
	done
	unset IFS
	echo "$type ${kept#,}"
}

# module prints whether the kernel has a module: loaded, available, missing or unknown.
module() {
	modules=$HOST/lib/modules/$(uname -r)
	if grep -qsE "/$1\\.ko(:|\$)" "$modules/modules.builtin"; then
		echo loaded
	elif grep -qsE "/$1\\.ko(\\.[a-z0-9]+)?:" "$modules/modules.dep"; then
		echo available
	elif [ -r "$modules/modules.dep" ] && [ -r "$modules/modules.builtin" ]; then
		echo missing
	else
		echo unknown
	fi
}

# knows prints whether the kernel knows a filesystem. /proc/filesystems has those that are loaded.
knows() {
	while read -r a b; do
		if [ "${b:-$a}" = "$1" ]; then
			echo loaded
			return
		fi
	done 2>/dev/null <"$HOST/proc/filesystems"
	module "$1"
}

# kubelet prints the state of a directory: own if the kubelet of this pod has it.
kubelet() {
	directory=$(state "$1")
	if [ "$directory" = directory ]; then
		directory=$(state "$1/pods/$POD")
		[ "$directory" = directory ] && directory=own
	fi
	echo "$directory"
}

echo facts 1
echo kernel "$(uname -r)"
root=$(state "$ROOT")
echo root "$root"
if [ "$root" = directory ]; then
	echo content "$(content)"
	echo filesystem "$(filesystem "$ROOT")"
fi
for f in ext4 xfs btrfs cifs; do
	echo module "$f" "$(knows "$f")"
done
if [ -e "$HOST/dev/loop-control" ]; then
	echo module loop loaded
else
	echo module loop "$(module loop)"
fi
for k in $KUBELETS; do
	echo kubelet "$k" "$(kubelet "$k")"
done
echo end
