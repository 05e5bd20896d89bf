# What people type. Each target prepares the machine first, which takes no time once it is done.
#
# KEEP=1 leaves the demo's virtual machines running, or gives you a shell in the Linux of demo-attach.

xtask = scripts/cargo host run --release --package xtask --

.PHONY: help demo demo-attach test bench bench-sharing bench-numa soak mutants clean

help:
	@echo 'make demo   several Debian virtual machines on a simulated four-node machine; KEEP=1 leaves it up'
	@echo 'make demo-attach  beneath a running Linux and away again, with a plot; KEEP=1 for a shell there'
	@echo 'make test   all tests'
	@echo 'make bench  the figures of SPECIFICATION.md; make bench-sharing those of shared memory'
	@echo 'make bench-numa  work on a machine with near and far memory'
	@echo 'make soak   random work for hours'
	@echo 'make mutants  puts kept faults into a copy of the sources, one by one: each must be noticed by its test'
	@echo 'make clean  removes what was built; what was downloaded stays in the cache'

demo demo-attach test bench bench-sharing bench-numa soak mutants:
	@scripts/setup --for $(if $(findstring bench,$@),bench,$(if $(findstring mutants,$@),test,$@))
	@$(xtask) $@ $(if $(KEEP),--keep)

clean:
	rm -rf target
