"""The laboratory: networks, data, trainings, records, reports and benchmarks that stand on spectralgrad."""

__version__ = "0.1.0"
