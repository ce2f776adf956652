// Token embeddings that begin with the company that tokens keep in the training data, instead of at random.
#pragma once

#include <cstdint>

#include "io/data/dataset.h"

// wte (V,C) += values of standard deviation 0.03 that are alike for tokens with like neighbours. Their C columns span
// about the leading eigenvectors of the positive pointwise mutual information (V,V) of tokens one or two places apart
// (Levy & Goldberg 2014, "Neural word embedding as implicit matrix factorization"). Subspace iteration finds them
// (Halko, Martinsson & Tropp 2011, "Finding structure with randomness"). It begins with the random values in wte, so
// the columns are in no order.
//
// The beginning of the data is counted, 16 Mi tokens, whose ids are less than V. The bits do not depend on the number
// of threads.
void add_pair_embeddings(const Dataset& dataset, int64_t V, int64_t C, float* wte);
