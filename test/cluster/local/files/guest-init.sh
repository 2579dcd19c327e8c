#!/bin/busybox sh
# The first program of a guest: it loads the modules that the disks need, makes a root of the system disk, which is
# read-only, and a tmpfs for changes, and goes on as the init process there. Its arguments are that process's.
set -e
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /system /changes /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "$module"; done </modules/list
for disk in /sys/block/vd*; do
	[ "$(cat "$disk/serial")" != system ] || mount -t ext4 -o ro "/dev/${disk##*/}" /system
done
mount -t tmpfs tmpfs /changes
mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/system,upperdir=/changes/upper,workdir=/changes/work root /root
for dir in proc sys dev; do mount -o move /$dir /root/$dir; done
exec switch_root /root /cluster "$@"
