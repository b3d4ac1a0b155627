# mpiburn with Open MPI: two stages, of which the second, without compilers, is the image. docs/containers.md
#
#   docker build --tag mpiburn .
#   docker run --rm --user "$(id -u)" --shm-size 256m --volume "$PWD:/work" --workdir /work mpiburn \
#     mpirun -n 2 --bind-to none mpiburn train --data-root data/digits
FROM rust:1.95-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev libclang-dev libgloo-dev g++
WORKDIR /mpiburn
COPY . .
RUN scripts/build.sh

FROM debian:bookworm-slim
# ssh is for several machines: mpirun starts ranks with it, and the workers of a Kubernetes job are ssh servers.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin libgloo0 openssh-client openssh-server \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /etc/ssh/ssh_host_*
# A job's key and its hosts are as old as the job. Port 2222 needs no root.
RUN useradd --create-home --uid 1000 mpiuser \
 && printf 'Host *\n  Port 2222\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' >/etc/ssh/ssh_config.d/mpi.conf \
 && printf 'Port 2222\nHostKey ~/.ssh/id_rsa\nPidFile none\nStrictModes no\nUsePAM no\n' | sed s,~,/home/mpiuser, >/home/mpiuser/.sshd_config
COPY --from=build /mpiburn/target/release/mpiburn /usr/local/bin/mpiburn
USER mpiuser
WORKDIR /home/mpiuser
CMD ["mpiburn", "--help"]
