// What ATen's CUDA headers name of cuBLAS, cuSPARSE and cuSOLVER, declared: their own headers come in wheels of 700 MB
// with libraries that nothing here calls.
#pragma once

struct cublasContext;
using cublasHandle_t = cublasContext*;
enum cublasStatus_t : int;

struct cublasLtContext;
using cublasLtHandle_t = cublasLtContext*;

struct cusparseContext;
using cusparseHandle_t = cusparseContext*;
enum cusparseStatus_t : int;

struct cusolverDnContext;
using cusolverDnHandle_t = cusolverDnContext*;
enum cusolverStatus_t : int;
