"""One room per family of methods: model, posterior, objectives, own optimiser steps, numerics."""
