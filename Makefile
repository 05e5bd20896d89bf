# What people type. Each target prepares the machine first, which takes no time once it is done.
#
# KEEP=1 leaves the demo's virtual machines running, or gives you a shell in the Linux of demo-attach.

# Built as tests are, without optimisation: it waits for others, and they need most of what it is made of.
xtask = CARGO_INCREMENTAL=0 scripts/cargo host run --package xtask --

.PHONY: help demo demo-attach demo-cluster check test bench bench-sharing bench-numa bench-os0 bench-cluster bench-span soak mutants clean

help:
	@echo 'make demo   several Debian virtual machines on a simulated four-node machine; KEEP=1 leaves it up'
	@echo 'make demo-attach  beneath a running Linux and away again, with a plot; KEEP=1 for a shell there'
	@echo 'make demo-cluster  one Debian over two machines computes on both; then one is killed, or with KEEP=1 none'
	@echo 'make check  the quick part of make test, for people at work'
	@echo 'make test   all tests'
	@echo 'make bench  all benches, checked against aims and bench/accepted.toml; WITHOUT=numa leaves that one out'
	@echo 'make bench-sharing, bench-numa, bench-os0  one of them: shared memory, near and far memory, beneath a Linux'
	@echo 'make bench-cluster  the link between two hosts: round trips, throughput, loss, instructions; and without the cipher'
	@echo 'make bench-span  parallel programs in a VM over two hosts, beside one CPU'
	@echo 'make soak   random work for hours'
	@echo 'make mutants  puts kept faults into a copy of the sources, one by one: each must be noticed by its test'
	@echo 'make clean  removes what was built; what was downloaded stays in the cache'

demo demo-attach demo-cluster check test bench bench-sharing bench-numa bench-os0 bench-cluster bench-span soak mutants:
	@scripts/setup --for $(if $(findstring bench,$@),bench,$(if $(filter mutants check demo-cluster,$@),test,$@))
	@$(xtask) $(if $(filter bench-cluster,$@),bench cluster,$@) $(if $(KEEP),--keep) $(if $(filter bench,$@),--check $(WITHOUT:%=--without %))

clean:
	rm -rf target
