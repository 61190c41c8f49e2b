"""flowengine beside its neighbours, on one machine, in one sitting: `make bench`."""
