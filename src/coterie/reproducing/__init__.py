"""The tables and figures of the papers by one command: experiments are data, one engine plans, runs and compares."""
