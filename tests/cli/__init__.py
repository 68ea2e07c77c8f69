"""The client: what only a store on a server has. Everything else is in the one suite."""
