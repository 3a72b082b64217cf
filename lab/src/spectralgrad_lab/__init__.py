"""The laboratory: networks, data, trainings, records, reports and benchmarks that stand on spectralgrad."""
